"""The catalog: a SQL database that pictures one repository."""
