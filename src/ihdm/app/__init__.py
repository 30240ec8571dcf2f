"""The web page: `studio.py` computes, `tabs/` and `page.py` display."""
