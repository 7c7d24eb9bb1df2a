-- Formulas that the views share, as macros: 95 % intervals of a ratio of sums X / Y over sessions.
--
-- A session is one draw: its steps, rounds and candidates are not independent. (x, y) are the sums of one session,
-- X = sum x and Y = sum y over the sessions, h2 = sum y^2 / Y^2, h3 = sum y^3 / Y^3, and so on.
--
-- half width    t_quantile(freedom) * sqrt(squares * h2 / spread) / Y, from the linearised variance of X / Y. NULL with
--               fewer than 2 sessions with y > 0, or where one session is all but all of Y
-- squares       sum of (x - X / Y * y)^2, from the moments xx = sum x * x, xy = sum x * y, yy = sum y * y
-- spread        what h2 shrinks to because X / Y was fitted to the same sessions. The correction h2 / spread is exact
--               where sessions differ by a random effect in their rate, whatever their sizes; m / (m - 1) for m
--               sessions of one size
-- freedom       Satterthwaite's degrees of freedom of that variance: m - 1 for m sessions of one size, about 1 where
--               one session rules
-- t_quantile    97.5 % quantile of Student's t, by a polynomial in 1 / freedom that is off by less than 2e-5 of it
--
-- The ends lie a half width away on a scale without ends, where a ratio of skewed sums is nearer to normal: the logit of
-- a share (share_end), the logarithm of what exceeds 1 (length_end). `away` is minus or plus the half width; where it is
-- 0 (all sessions alike) both ends are the value itself.
CREATE MACRO squares(x, y, xx, xy, yy) AS greatest(xx - 2 * (x / y) * xy + (x / y) * (x / y) * yy, 0);

CREATE MACRO spread(h2, h3) AS CASE WHEN h2 + h2 * h2 - 2 * h3 > 1e-9 * h2 THEN h2 + h2 * h2 - 2 * h3 END;

CREATE MACRO freedom(spread, h2, h3, h4, h5) AS
    CASE WHEN spread IS NOT NULL THEN greatest(
        coalesce(
            spread * spread / nullif(
                greatest(h4 + 4 * h2 * h4 - 4 * h5 + h2 * h2 * h2 * h2 + 2 * h3 * h3 - 4 * h2 * h2 * h3, 0), 0
            ),
            1
        ),
        1
    ) END;

CREATE MACRO t_quantile(freedom) AS
    1.959963984540054::double * exp(
        (1.21009 + (0.708389 + (0.16596 - (0.315678 - 0.100416 / freedom) / freedom) / freedom) / freedom) / freedom
    );

CREATE MACRO share_end(share, away) AS
    CASE WHEN away = 0 THEN share ELSE
        1 / (1 + (1 - share) / nullif(share, 0) * exp(-away / nullif(share * (1 - share), 0)))
    END;

CREATE MACRO length_end(length, away) AS
    CASE WHEN away = 0 THEN length ELSE 1 + (length - 1) * exp(away / nullif(length - 1, 0)) END;
