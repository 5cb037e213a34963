"""Users, permissions, policies, queue arguments and archives: what users and operators set, and the checks of what they may do."""
