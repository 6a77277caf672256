"""Drop-ins for frameworks and libraries."""
