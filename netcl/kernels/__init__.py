"""The kit that kernels are built with: program text, launches, tables of sizes, plans."""
