"""From a cut to durable files and back: uploads, consolidation, local links, transfer, restore."""
