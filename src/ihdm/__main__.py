from ihdm.cli import main

main()
