"""The page of isotropy: measures by layer, spectra, and similarity after each transform."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.chart_data import Estimate
from kinfolk.reports.charts import IntervalRow, Series, interval_chart, line_chart

VARIANCE_ROUNDING = 1e-10  # of the variance: float32 vectors have no smaller share


@dataclass(frozen=True, kw_only=True)
class IsotropyPage:
    """The values that the page shows."""

    title: str
    layers: Sequence[int]
    measures: Mapping[str, Sequence[tuple[str, Sequence[float]]]]  # curves by layer of each
    similarity: Sequence[Estimate] = ()  # Spearman by layer
    # Shares of variance by layer, of tokens and of texts.
    spectra: Mapping[str, Sequence[tuple[str, Sequence[float]]]]
    # Name, Spearman, difference to none, (cosine, IsoScore, uniformity), alignment.
    transforms: Sequence[
        tuple[str, Estimate, Estimate | None, tuple[float, float, float], float]
    ] = ()
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(values: IsotropyPage) -> str:
    """Return the page as HTML."""
    return page.render(
        "isotropy_page.html",
        page=values,
        by_layer=[
            (name, layer_chart(values.layers, curves, name))
            for name, curves in values.measures.items()
        ],
        spectra=[(name, spectrum_chart(layers)) for name, layers in values.spectra.items()],
        similarity=similarity_chart(values),
        transforms=transform_chart(values),
    )


def layer_chart(
    layers: Sequence[int], curves: Sequence[tuple[str, Sequence[float]]], name: str
) -> Markup:
    """Draw a measure of tokens and texts by layer."""
    series = [Series(curve, layers, ys, n) for n, (curve, ys) in enumerate(curves)]
    return line_chart(series, x="layer", y=name, smooth=False, markers=True)


def spectrum_chart(layers: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Draw the shares of variance of the principal components of the first and the last layers.

    Those of rounding alone, where a layer norm leaves a direction without variance, are left out.
    """
    shown = layers if len(layers) <= 4 else [layers[0], *layers[-3:]]
    series = []
    for n, (name, shares) in enumerate(shown):
        known = [(x, share) for x, share in enumerate(shares, start=1) if share > VARIANCE_ROUNDING]
        series.append(Series(name, [x for x, _ in known], [share for _, share in known], n))
    return line_chart(
        series, x="principal component", y="share of variance", smooth=False, log_y=True, digits=4
    )


def similarity_chart(values: IsotropyPage) -> Markup:
    """Draw the Spearman correlation by layer, with its interval."""
    if not values.similarity:
        return Markup("")
    scores, low, high = zip(*values.similarity, strict=True)
    series = Series("Spearman", values.layers, scores, 0, low=low, high=high)
    return line_chart([series], x="layer", y="Spearman", smooth=False, markers=True)


def transform_chart(values: IsotropyPage) -> Markup:
    """Draw the Spearman correlation after each transform, with its interval."""
    if not values.transforms:
        return Markup("")
    rows = [
        IntervalRow(name, *spearman, color=n)
        for n, (name, spearman, *_) in enumerate(values.transforms)
    ]
    return interval_chart(rows, x="Spearman", digits=3)
