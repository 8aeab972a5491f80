"""The commands of `atoll place`, each imported when it is called."""
