from types import ModuleType

cv2: ModuleType
