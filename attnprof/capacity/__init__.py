"""What an estimate is made of: the request, the cache's sizes, times, and changes to try."""
