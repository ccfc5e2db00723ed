"""What everything else stands on: errors, settings, types, the manifest, the noise specification."""
