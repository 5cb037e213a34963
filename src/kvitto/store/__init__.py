"""Files: message segments, settlements, the journal; nothing above knows their form."""
