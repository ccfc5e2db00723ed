"""``bench``: steps of the session timed against its baselines, in one run, with the same number of threads.

``matrix`` defines the variants, ``bundles`` compiles or finds them, ``runner`` and
``eager_process`` time steps of one variant, ``rounds`` alternates between variants, ``summary``
computes figures and ratios, ``output`` writes them, ``run`` connects these modules.
"""
