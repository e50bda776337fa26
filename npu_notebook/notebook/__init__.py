"""The room that knows IPython's front end: magics, views, the extension."""
