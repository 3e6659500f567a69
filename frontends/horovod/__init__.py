"""What Horovod's API has in common for all frameworks. The frontends export it; nothing here knows a framework."""
