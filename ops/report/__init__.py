"""The report: one page that tells a run from its log, with pictures and the audit's verdict."""
