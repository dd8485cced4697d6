"""The console: a cluster in a browser, over HTTP, served by the standard library.

server           the port: requests in, responses out, limits
guard            authorizes reads and changes: hosts, token, sessions, CSRF
site             routes paths to pages, and turns errors into pages
visit            one request, and all that a page needs to answer it
pages/           a module for each kind of page; they get data from the client's Admin
forms/           pages that send messages and change topics
markup/, layout  HTML elements, components and charts, and the frame; only `html` escapes text
history          figures of the last minutes for charts, and sizes of topics
"""
