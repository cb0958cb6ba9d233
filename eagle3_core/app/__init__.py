"""What the apps share: state in the URL, the catalogue of sources, the explorer widget, the server."""
