"""Term to value: exact on fractions, 60 digits otherwise, refused where it would outgrow the machine."""
