# Slurm's verbs for the whole mesh, in this shell: . deploy/slurm-aliases.sh
# The native commands stay reachable with a backslash or `command`: \squeue, command sbatch.
alias squeue='starling slurm squeue'
alias sinfo='starling slurm sinfo'
alias sbatch='starling slurm sbatch'
alias scancel='starling slurm scancel'
alias sacct='starling slurm sacct'
