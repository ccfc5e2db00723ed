"""Steps of methods: what a session evaluates in one, as a plan in the manifest (``core.step_plan``)."""
