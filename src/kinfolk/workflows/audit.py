"""The findings of an audit of text files, as sentences and as the values of its page."""

from kinfolk.data.audit import Audit, DuplicateExample, FileAudit
from kinfolk.data.files import skipped_summary
from kinfolk.reports.audit_page import AuditPage, FigureCard, FileRow
from kinfolk.reports.charts import compact_number
from kinfolk.reports.page import percent, plural

MAX_FILES = 200  # in the table of the page; those with problems come first


def findings(audit: Audit) -> list[str]:
    """Return the findings to fix before training, the worst first."""
    sentences = []
    for file in audit.files:
        sentences += _faults(file)
        sentences += [f"{file.path}: {problem}" for problem in _counted_problems(file)]
    if audit.skipped:
        files = plural(len(audit.skipped), "file")
        sentences.append(
            f"{files} not read: {skipped_summary(audit.skipped)}; name those to be read"
        )
    counts = [
        (audit.control_characters, "control character"),
        (audit.replacement_characters, "replacement character"),
        (audit.empty, "empty document"),
    ]
    sentences += [plural(count, noun) for count, noun in counts if count]
    duplicates = audit.exact_duplicates + (audit.near_duplicates or 0)
    if duplicates:
        kind = "near" if audit.near_duplicates else "exact"
        sentences.append(
            f"{plural(duplicates, 'duplicate document')} ({percent(duplicates, audit.documents)}): "
            f"kinfolk prepare --dedup {kind} removes them"
        )
    return sentences


def file_problems(file: FileAudit) -> list[str]:
    """Return the problems of a file: ["2 invalid UTF-8 sequences, at a.txt:5, a.txt:9"]."""
    return [*_faults(file), *_counted_problems(file)]


def _faults(file: FileAudit) -> list[str]:
    """Return the errors, with the path of the file, at which `prepare` stops."""
    faults = (file.error, file.problems.refusal)
    return [f"{fault} (prepare stops there)" for fault in faults if fault]


def _counted_problems(file: FileAudit) -> list[str]:
    sentences = []
    if not file.documents and not file.error:
        sentences.append("no text")
    if file.problems.errors:
        lines = ", ".join(f"{file.path.name}:{line}" for line in file.problems.line_numbers)
        sentences.append(f"{file.problems.errors:,} invalid UTF-8 sequences, the first at {lines}")
    if file.problems.invalid_json_lines:
        sentences.append(f"{plural(file.problems.invalid_json_lines, 'line')} not JSON")
    return sentences


def audit_page(audit: Audit) -> AuditPage:
    """Gather the values of the page."""
    unread = sum(bool(file.error) for file in audit.files)
    cut = f", of which {unread} could not be read to the end" if unread else ""
    near = audit.near_duplicates
    rows = [
        FileRow(
            path=str(file.path),
            problems=file_problems(file),
            documents=file.documents,
            characters=file.characters,
            lines=file.problems.lines,
            blank=file.problems.blank,
            bytes=file.bytes,
        )
        for file in audit.files
    ]
    return AuditPage(
        title=f"{plural(audit.documents, 'document')}, "
        f"{compact_number(audit.characters)} characters",
        lead=f"{plural(len(audit.files), 'file')}{cut}. The median document has "
        f"{audit.median:,} characters.",
        cards=[
            FigureCard(
                "Duplicates",
                percent(audit.exact_duplicates + (near or 0), audit.documents),
                f"{audit.exact_duplicates:,} exact" + ("" if near is None else f", {near:,} near"),
            ),
            FigureCard(
                "Repeated lines",
                percent(audit.repeated_lines, audit.lines),
                f"{audit.repeated_lines:,} of {audit.lines:,} occurred before",
            ),
            FigureCard(
                "Invalid UTF-8",
                compact_number(audit.errors),
                f"{audit.control_characters:,} control, {audit.replacement_characters:,} "
                "replacement characters",
            ),
            FigureCard(
                "Blank lines",
                percent(audit.blank, audit.file_lines),
                f"{plural(audit.empty, 'empty document')}, "
                f"{plural(audit.empty_files, 'empty file')}",
            ),
        ],
        findings=findings(audit),
        lengths=audit.lengths,
        shortest=audit.shortest,
        longest=audit.longest,
        scripts=audit.scripts,
        languages=audit.languages,
        repeated_lines=audit.most_repeated_lines,
        exact_duplicates=[duplicate_row(example) for example in audit.exact_examples],
        near_duplicates=[duplicate_row(example) for example in audit.examples],
        files=sorted(rows, key=lambda row: not row.problems)[:MAX_FILES],
        more_files=max(0, len(rows) - MAX_FILES),
    )


def duplicate_row(example: DuplicateExample) -> tuple[str, str, str]:
    """Return where a duplicate and the earlier document begin, and the text."""
    return (
        f"{example.path.name}:{example.line}",
        f"{example.same_as_path.name}:{example.same_as_line}",
        example.text,
    )
