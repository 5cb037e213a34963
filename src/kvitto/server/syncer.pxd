from kvitto.server cimport datasync
