"""Operating-system services: forks, files and file locks; and protobuf fields."""
