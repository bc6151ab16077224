"""Web pages: routes that answer HTML, their templates and their static files."""
