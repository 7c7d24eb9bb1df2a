"""Walk deterministic proposers along recorded token ids: exact counts, no target model."""
