"""What users and operators set: users, permissions, policies, arguments of queues, archives; and who may do what."""
