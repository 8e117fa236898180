"""The timeline in the browser: a server on this machine, its pages, and the same pages in one file.

`answers` is what pages ask for, each a call of the api; `actions` what they change; `page` the document around them.
`server` serves these, `one_file` writes them down. The pages themselves are the modules in `static`, which need no
build step: they are sent as they are.
"""
