from stagefold.cli import main

raise SystemExit(main())
