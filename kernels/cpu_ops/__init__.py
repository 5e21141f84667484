"""The backend for the CPU: C kernels where the extension was built, torch (the reference) for the rest."""
