"""Launch commands that people already have, read as if they were topology files.

command   a command line, its words with their places
turn      which commands of a script run at the same time
options   a command line taken apart as the engine's argparse does
draft     the topology file that commands imply, being written
engine    the engines whose commands can be read, found by their entry points
sources   the files that people keep commands in
reading   from files and commands to what is checked
"""
