"""The page that ``zoexport bench`` measures for."""
