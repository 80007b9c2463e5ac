"""File formats of labelled data, one module each: how a format is detected, read and written.

To add a format, add one module to this package. It ends in

    register(Format(name="pairs", tasks=("classify",), detect=detect, read=read, write=write))

`detect(file)` returns a `FileSpec`, or None for files of another format; `read(file, spec, report)`
yields rows of `kinfolk.tasks.rows`; `write(predictions)` yields the lines of the file with the
predictions in it. Modules of this package are imported automatically, others before they are used.
"""
