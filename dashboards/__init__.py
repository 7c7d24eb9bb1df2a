"""Streamlit pages over the SQL views: no arithmetic here."""
