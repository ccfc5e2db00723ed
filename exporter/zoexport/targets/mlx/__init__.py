"""Apple's MLX: programs as exported functions (.mlxfn) over weights that are inputs."""
