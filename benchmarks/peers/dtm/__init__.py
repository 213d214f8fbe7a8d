"""The saga in DTM's HTTP protocol: a participant with DTM's barrier, and a program that submits."""
