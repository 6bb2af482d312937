"""What Percola asks of the operating system: forks, files and file locks."""
