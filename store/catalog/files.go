package catalog

// OpenFiles is how many files a catalog in this process holds open at most: its tables, and descriptors in
// reserve.
func OpenFiles() int { return openTables() + spareFiles }

// openTables is how many tables are kept open, those used last. Where the process may have few descriptors, fewer
// are kept, and opened again.
func openTables() int { return max(leastOpenFiles, min(mostOpenFiles, descriptorLimit()/4)) }

const (
	leastOpenFiles = 50
	mostOpenFiles  = 500
)
