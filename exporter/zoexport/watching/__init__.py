"""Watching a run: ``train --report-to`` while it trains, and the page of ``report`` afterwards (docs/report.md)."""
