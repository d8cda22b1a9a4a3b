"""Result bodies side by side in large WARC files, on the disk of one process."""
