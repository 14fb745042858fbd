"""`gtpo view`: a local page that follows runs while they go. It reads run folders and changes nothing."""
