"""The console: a cluster in a browser, over HTTP, served by the standard library.

http_port      the port: requests in, responses out, limits
guard          who may ask and who may change: hosts, token, sessions, CSRF
site           which page answers which path, and what an error looks like
*_pages        a file for each kind of page; they take data from the client's Admin
html, parts, charts, frame    what pages are made of; all text is escaped in html alone
history        figures of the last minutes, for charts
"""
