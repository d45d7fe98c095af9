"""Whether every deployment began exactly where its predecessor ended, by what evidence."""
