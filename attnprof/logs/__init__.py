"""Start-up logs of serving engines, read line by line into settings and figures."""
