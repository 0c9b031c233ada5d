"""From records to what people read: a table for the terminal, a table for programs, figures, and a page.

`collect` reads a folder, `page` makes all that a page shows of it, `claims` judges the paper's, `html` is the file;
`writing` puts it all on disk. Nothing is imported here: the command line knows its options without the extra.
"""
