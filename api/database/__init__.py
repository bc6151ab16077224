"""The service's own database: accounts, tokens, the directory of repositories."""
