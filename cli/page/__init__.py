"""The page of `edl-ckpt report`: one HTML file without scripts that needs no network.

`render` says what the page has, and `charts` how numbers look; it draws with Vega-Lite when the report is made.
`page.html.jinja` escapes every name by default, and `page.css` is light and dark. The policy for browsers in the
page forbids scripts and requests, so a hostile name could do nothing even unescaped.
"""
