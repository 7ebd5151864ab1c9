package store

func childMode() bool { return false }
func runChild() int   { return 0 }
