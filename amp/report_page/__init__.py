"""The report as one HTML page that needs no network: data in, text out."""
