"""The experiment of docs/claims-plan.md: its plan, its runs, their records, and the pages made of them."""
