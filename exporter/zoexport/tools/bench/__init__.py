"""``bench``: steps of the session timed against its baselines, in one run, with the same number of threads.

``matrix`` says what is measured, ``bundles`` compiles or finds it, ``runner`` and ``eager_process`` time some steps of
one variant, ``rounds`` takes turns, ``summary`` makes figures and ratios, ``output`` writes them, ``run`` joins
these.
"""
